"""External authorization: a server of the operator decides whether a request may go on."""
