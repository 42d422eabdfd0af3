"""HCL from recipes, its policy, its validation, and the Packer program."""
