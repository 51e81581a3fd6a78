"""What users write: one model per kind. `meta.Resource` is the base, `kinds` finds a model by apiVersion and kind."""
