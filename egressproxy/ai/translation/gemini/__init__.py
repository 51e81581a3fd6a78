"""Gemini's generateContent, as a provider."""
