"""What messages say in plain words: personal data, keys, prompts. Detectors are pure: text in, places out."""
