"""Addresses and AMIs' layers for the lab's instances."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends

from lab.api.faults import Faults
from lab.base.settings import Lab
from lab.machine import bridge, images
from lab.moto import public_images


class Machines:
    """The lab as moto's classes use it; a single object, set by `lab.moto.backends`."""

    def __init__(
        self,
        lab: Lab,
        public: list[public_images.PublicImage],
        base: Callable[[str, str], Path],
        faults: Faults,
    ) -> None:
        self.lab = lab
        self.public = {image.id: image for image in public}
        self.base = base
        self.faults = faults
        self.made = {image.id: image for image in images.load(lab)}
        # LabInstance, whose module imports this one.
        self.by_address: dict[str, Any] = {}
        # Addresses on the internet of instances that have been stopped → those of their guests.
        self.public_addresses: dict[str, str] = {}
        self._numbers = itertools.count()
        self._public_numbers = itertools.count()
        self._lock = threading.Lock()

    def address(self, instance: Any) -> str:
        """Assign a free address, reusing old ones as late as possible: ssh remembers host keys."""
        with self._lock:
            while True:
                number = next(self._numbers) % (250 * 250)
                address = f"{self.lab.prefix}.{1 + number // 250}.{2 + number % 250}"
                if address not in self.by_address:
                    self.by_address[address] = instance
                    return address

    def other_public_address(self, address: str) -> str:
        """Assign another public address to the guest at an address: it reaches it from now on."""
        with self._lock:
            while True:
                number = next(self._public_numbers) % (4 * 250)
                public = f"{self.lab.prefix}.{251 + number // 250}.{2 + number % 250}"
                if public not in self.public_addresses:
                    self.public_addresses[public] = address
                    break
        bridge.publish(self.lab, public, address)
        return public

    def release_public_addresses(self, address: str) -> None:
        """Take a guest the public addresses that `other_public_address` gave it."""
        with self._lock:
            released = [item for item, of in self.public_addresses.items() if of == address]
        for public in released:
            bridge.unpublish(self.lab, public, address)
            self.public_addresses.pop(public, None)

    def layers(self, image_id: str) -> tuple[str, Path | None, list[str]]:
        """An AMI's distribution, base (None: the current one) and ids of its frozen layers."""
        if image_id in self.made:
            image = self.made[image_id]
            return image.distro, Path(image.base), image.layers
        if image_id in self.public:
            public = self.public[image_id]
            return public.base, None, []
        raise EC2ClientError("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")

    def has_key_pairs(self) -> bool:
        """Return True if any key pair exists."""
        return any(
            backend.key_pairs for regions in ec2_backends.values() for backend in regions.values()
        )

    def in_use(self) -> set[str]:
        """The frozen layers that instances use."""
        instances = list(self.by_address.values())
        return {layer for instance in instances for layer in instance.layers}
