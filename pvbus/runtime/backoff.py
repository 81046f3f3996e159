"""The randomness of the shells' waits; `pvbus.core.backoff` computes them."""

import random

from pvbus.core.backoff import Jitter

uniform: Jitter = random.uniform
