"""Authorization: servers of the operator's that are asked whether a request may go on."""
