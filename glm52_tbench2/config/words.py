"""Numbers in sentences."""


def counted(number: int, noun: str) -> str:
    """As "1 point" or "3 points"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
