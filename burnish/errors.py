"""What a person can put right."""


class UserError(ValueError):
    """Bad input: the message names the option or the record, its value and the way out. Exit code 2."""
