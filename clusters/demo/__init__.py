"""The generated usage of a demonstration: some weeks before its first day. `plan` is pure and lists the runs, `history`
bills them through the path of real usage."""
