"""The life of one exchange: admission, filters, the backend's answer, and its end."""
