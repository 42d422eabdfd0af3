"""The services that moto keeps, one module or folder each, and what ties them to machines."""
