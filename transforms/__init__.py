"""One module per transform, found by walking this package (see :mod:`.registry`)."""
