"""The families, a few a file; importing this package registers them all."""

from . import text as text
