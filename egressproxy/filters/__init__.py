"""Filters: one file each, behind one interface (`base`), compiled into flat chains (`chain`)."""
