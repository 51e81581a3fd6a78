"""Built-in filters that know models: what requests to them take, which ones may be asked, and where they stand."""
