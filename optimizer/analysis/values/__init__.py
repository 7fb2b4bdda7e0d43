"""What expressions may be: values followed through variables, attributes and options."""
