"""Who a client is, from what it shows: tokens, passwords, addresses. Pure: values in, values out."""
