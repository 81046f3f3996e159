"""The randomness of the shells' waits; `pvbus.core.kernel.backoff` computes them."""

import random

from pvbus.core.kernel.backoff import Jitter

uniform: Jitter = random.uniform
