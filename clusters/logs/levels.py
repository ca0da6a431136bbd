"""What a line of a log is: an error, a warning, or what a framework says on every start. Pure.

The search for the first error and the colours of the tab Logs share these patterns, so they are written for Python's `re` and for
the browser's RegExp alike.
"""

# "mean error: 0.3" is a number, not an error.
ERROR = (
    r"\b(?:ERROR|FATAL|CRITICAL|Traceback \(most recent call last\)|panic:|[Ff]atal error|error:(?!\s*[-+.\d]))"
    r"|(?:Error|Exception)\b"
)
# The same from C++ (glog: E0000 00:00:1764…, older TensorFlow: 2026-11-30 10:00:00.1: E tensorflow/…), and places of a traceback.
ERROR_FORMS = r"^[EF]\d{4} [\d:.]+|^[-\d]+ [\d:.]+: [EF] |^\s+File \".*\", line \d+"
WARNING = r"\b(?:WARNING|WARN)\b|(?:Warning)\b|^W\d{4} [\d:.]+|^[-\d]+ [\d:.]+: W "
# TensorFlow, XLA and oneDNN on every machine without a GPU.
HARMLESS = (
    r"failed call to cuInit|Unable to register cu(?:DNN|BLAS|FFT) factory|Could not find cuda drivers|GPU will not be used"
    r"|All log messages before absl::InitializeLog|oneDNN custom operations are on|binary is optimized to use available CPU"
    r"|enable the following instructions|rebuild TensorFlow with the appropriate compiler flags|TF-TRT Warning"
    r"|Cannot dlopen some GPU libraries|Skipping registering GPU devices|already been registered"
)
# Besides, what C++ says for information, and debugging.
QUIET = HARMLESS + r"|^I\d{4} [\d:.]+\s+\d+ \S+\.cc:\d+\]|^[-\d]+ [\d:.]+: I (?:tensorflow|external|xla)/|\bDEBUG\b"
