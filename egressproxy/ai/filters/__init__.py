"""Built-in filters for AI models: token use, allowed models, and regions."""
