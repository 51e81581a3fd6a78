"""The Audit filter: who asked whom for what, in files that show when a record was changed, removed or moved.

`audit` is the filter, `record_chain` the form of a line and its hash, and the names of files, `chain_writer`
what writes them, `verification` what looks whether they are whole.
"""
