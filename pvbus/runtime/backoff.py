"""The randomness of the shells' waits; `pvbus.core.backoff` computes them."""

import random

from pvbus.core.backoff import Backoff as Backoff
from pvbus.core.backoff import Jitter as Jitter

uniform: Jitter = random.uniform
