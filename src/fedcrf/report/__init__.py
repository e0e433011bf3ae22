"""What a run shows to a reader: the reasons for a weight in words, and the report as a page."""

from fedcrf.extras import naming_extras

with naming_extras():
    import pandas  # noqa: F401
