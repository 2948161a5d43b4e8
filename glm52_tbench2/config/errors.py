"""The one exception a user is meant to read."""


class UserError(Exception):
    """Bad input, told in one sentence: what is wrong, where, and what to write instead.

    The command line prints the sentence alone and exits with code 2.
    """
