"""How the lab's API answers: who may call, what is refused, what of moto is replaced."""
