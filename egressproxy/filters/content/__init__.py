"""What messages say in plain words: personal data, keys, and what is asked of a model. The detectors are pure: text in,
places out.
"""
