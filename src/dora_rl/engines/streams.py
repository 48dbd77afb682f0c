"""The random stream of a request: four words that follow from its key and nothing else.

Philox4x32-10 (Salmon et al., 2011) is a bijection of four words for every key, so requests of one seed that
differ in epoch, row, member or attempt have different streams. A branch other than 0 is one more such
bijection behind it, so members never share a branch's stream either. The words then key the noise of every
token: word `i % 4` of block `i // 4` at `position` belongs to token id `i` (see `native.philox`).
"""

from dora_rl.engines.requests import StreamKey

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
NUM_ROUNDS = 10
WORD_MASK = 0xFFFFFFFF

Words = tuple[int, int, int, int]


def stream_of(key: StreamKey) -> Words:
    """The random stream of a request: two words of key and two of counter, for its noise."""
    counter = (key.epoch, key.row, key.member, key.attempt)
    root = philox(counter, (key.seed & WORD_MASK, key.seed >> 32))
    return philox(root, (key.branch, 0)) if key.branch else root


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Compute one block of Philox4x32-10."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(NUM_ROUNDS):
        first, second = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1 = (second >> 32) ^ c1 ^ k0, second & WORD_MASK
        c2, c3 = (first >> 32) ^ c3 ^ k1, first & WORD_MASK
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD_MASK, (k1 + KEY_STEPS[1]) & WORD_MASK
    return c0, c1, c2, c3
