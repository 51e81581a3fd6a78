"""Requests that the gateway makes for itself: to authorization servers, for keys, and for filters."""
