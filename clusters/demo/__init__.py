"""What a demonstration has that nobody did: some weeks of usage before its first day. `plan` is pure and says what ran, `history`
has it billed by the path of real usage."""
