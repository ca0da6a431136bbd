"""The recipes that *Help* shows under “From your program”: how a program reports numbers, saves models and goes on after a retry.
Pure. A test reads the lines of these recipes as the portal does, so that none of them promises what it cannot read.
"""

from __future__ import annotations

from portal.extension_points import Recipe

# Where a package is named under Requirements.
CLOSED = (
    "If that cannot be reached, ask an administrator, or for an image that has the package; printed numbers need none."
)

PRINTED = Recipe(
    "Print numbers",
    "To log a metric, print it. Metrics draws a curve for each named number in a line with a step or an epoch. It needs no "
    "library and no output. Printed lines count as long as the run has no numbers from the files or from MLflow below. These "
    "forms are read:",
    """\
step 75: loss = 0.41, accuracy = 0.92
{"step": 75, "loss": 0.41, "accuracy": 0.92}
Epoch [3/5], loss: 0.2, lr: 1e-3
iter 10 | train loss 3.2 | val loss 3.4
[7]\ttrain-rmse:0.38
Epoch 3/5
225/225 - 1s - 5ms/step - accuracy: 0.91 - loss: 0.31""",
)

FILES = Recipe(
    "Images and tables",
    "Save pictures and tables into the output: they are shown on Metrics while the run goes on. Images whose names differ in "
    "their last number are one image with a slider over its steps, and Compare shows those of several runs side by side. The "
    "rows of a table sort and are found there.",
    """\
plt.savefig(f"/elearn/output/samples_{epoch:04d}.png")
frame.to_csv("/elearn/output/predictions.csv", index=False)

# or, with MLflow
mlflow.log_image(image, key="samples", step=epoch)
mlflow.log_table(frame, "predictions.json")""",
)
OPTIONS = Recipe(
    "Parameters in Results",
    "Variables of the cluster (ENV) and options of its command are columns of Results, to sort, filter and group by. So are "
    "parameters that the program records by MLflow, and the configuration of W&B.",
    "python train.py --learning-rate 0.01 --batch-size=64 --augment",
)

SEVERAL = Recipe(
    "Several GPUs or machines",
    "A program uses several GPUs of its task by a strategy, or by one process for each. Several workers find each other by "
    "variables that the portal sets: TF_CONFIG for TensorFlow, PET_* for torchrun. So the command names no addresses, and is the "
    "same for one task and for many.",
    """\
strategy = tf.distribute.MirroredStrategy()  # the GPUs of one task
strategy = tf.distribute.MultiWorkerMirroredStrategy()  # those of all workers, by TF_CONFIG
with strategy.scope():
    model = make_model()
model.fit(data)

# or, with PyTorch, by the command: torchrun --nproc-per-node=gpu train.py
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(model.cuda())""",
)

RECIPES = (
    PRINTED,
    SEVERAL,
    Recipe(
        "TensorBoard summaries from TensorFlow and Keras",
        "Give the cluster an output in object storage, and log scalars, histograms and images below /elearn/output. Metrics "
        "draws them while the run goes on; TensorBoard itself is one click away there.",
        """\
writer = tf.summary.create_file_writer("/elearn/output/summaries")
with writer.as_default(step=step):
    tf.summary.scalar("loss", loss)
    tf.summary.histogram("weights", weights)
    tf.summary.image("digits", images)  # [count, height, width, channels]
writer.flush()

# or, with Keras
model.fit(data, callbacks=[keras.callbacks.TensorBoard("/elearn/output/summaries", histogram_freq=1)])""",
    ),
    Recipe(
        "TensorBoard summaries from PyTorch",
        "Log metrics, histograms and images into the same files. If the image lacks both packages, name tensorboardX under "
        "Requirements of the form.",
        """\
from torch.utils.tensorboard import SummaryWriter  # or: from tensorboardX import SummaryWriter

writer = SummaryWriter("/elearn/output/summaries")
writer.add_scalar("loss", loss, step)
writer.add_histogram("weights", weights, step)
writer.add_image("digit", image, step)  # [channels, height, width]
writer.close()""",
    ),
    Recipe(
        "MLflow",
        "Programs that use MLflow work unchanged: the address and the token of the portal's tracking server are in "
        "MLFLOW_TRACKING_URI and MLFLOW_TRACKING_TOKEN. Name mlflow-skinny under Requirements of the form: it comes "
        f"from the portal's package index. {CLOSED} Artifacts need an output. On Kubernetes an administrator names the server's "
        "address first.",
        """\
import mlflow

mlflow.log_param("lr", 0.1)
mlflow.log_metric("loss", 0.4, step=1)
mlflow.log_artifact("confusion.png")""",
    ),
    Recipe(
        "W&B (Weights & Biases)",
        "Programs that use W&B work unchanged, without an account: WANDB_MODE is offline, and WANDB_DIR the output, which they "
        "need. What W&B writes there becomes curves, images, histograms and tables on Metrics; the configuration and the summary "
        "become columns of Results. Name wandb under Requirements of the form: it comes from the portal's package index. "
        f"{CLOSED}",
        """\
import wandb

run = wandb.init(config={"lr": 0.1})
run.log({"loss": 0.4, "samples": wandb.Image(image, caption="7"), "errors": wandb.Table(dataframe=errors)})
run.finish()""",
    ),
    FILES,
    Recipe(
        "CSV from Lightning and Keras",
        "Tables in the output are read if they have a column step or epoch, and a name that loggers use: metrics.csv, "
        "results.csv, progress.csv, history.csv, log.csv or training.log.",
        """\
trainer = Trainer(logger=CSVLogger("/elearn/output", name="csv"))  # from lightning.pytorch.loggers

# or, with Keras
model.fit(data, callbacks=[keras.callbacks.CSVLogger("/elearn/output/history.csv")])""",
    ),
    Recipe(
        "Save a model that can be registered",
        "Write it into a folder of its own in the output, apart from checkpoints. After the run, Register as a model on its page "
        "makes a version of it; the hook “Save a model version” does so after every success.",
        """\
tf.saved_model.save(model, "/elearn/output/model")

# or one file in that folder
model.save("/elearn/output/model/digits.keras")
torch.onnx.export(model, (example,), "/elearn/output/model/digits.onnx")
skops.io.dump(model, "/elearn/output/model/digits.skops")""",
    ),
    Recipe(
        "Checkpoints: resume after a retry",
        "A task that is started again, or whose GPUs were taken back, finds the files that it had stored in /elearn/output. Save "
        "checkpoints there, and begin with the newest.",
        """\
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
manager = tf.train.CheckpointManager(checkpoint, "/elearn/output/checkpoints", max_to_keep=3)
checkpoint.restore(manager.latest_checkpoint)  # None at first: then it changes nothing
manager.save()  # every few minutes

# or, with Keras
model.fit(data, callbacks=[keras.callbacks.BackupAndRestore("/elearn/output/backup")])

# or, with PyTorch
if os.path.exists("/elearn/output/last.pt"):
    model.load_state_dict(torch.load("/elearn/output/last.pt"))
torch.save(model.state_dict(), "/elearn/output/last.pt")  # every few minutes""",
    ),
    OPTIONS,
)
