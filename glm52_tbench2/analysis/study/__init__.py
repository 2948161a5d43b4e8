"""A study: what was fixed in advance, what its runs measured, and the page that says so."""
