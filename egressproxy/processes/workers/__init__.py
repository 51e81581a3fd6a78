"""The processes that serve: one data plane in this process, or a supervisor and its workers (`data_plane`)."""
