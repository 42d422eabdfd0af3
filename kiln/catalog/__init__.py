"""The catalog: a static site of lines, channels and images, for those who launch them."""
