"""How the lab's API answers: what comes in, what is not supported, what of moto is replaced."""
