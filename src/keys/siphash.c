/*-------------------------------------------------------------------------
 *
 * siphash.c
 *	  SipHash-2-4, a short hash with a key (Aumasson and Bernstein, 2012).
 *
 * Who does not know the key cannot make inputs that collide, nor find out by
 * hashes which inputs they are of; PostgreSQL's own hash functions have a seed,
 * which is no key.
 *
 * Needs nothing but the C library, so that its test can do without a server.
 *
 *-------------------------------------------------------------------------
 */
#include "keys/siphash.h"

static inline uint64_t
rotate(uint64_t word, int bits)
{
	return (word << bits) | (word >> (64 - bits));
}

/* Eight bytes, least significant first, on any machine */
static inline uint64_t
load(const unsigned char *bytes, size_t len)
{
	uint64_t	word = 0;

	for (size_t i = 0; i < len; i++)
		word |= (uint64_t) bytes[i] << (8 * i);
	return word;
}

static inline void
mix(uint64_t v[4], int rounds)
{
	while (rounds-- > 0)
	{
		v[0] += v[1];
		v[2] += v[3];
		v[1] = rotate(v[1], 13) ^ v[0];
		v[3] = rotate(v[3], 16) ^ v[2];
		v[0] = rotate(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = rotate(v[1], 17) ^ v[2];
		v[3] = rotate(v[3], 21) ^ v[0];
		v[2] = rotate(v[2], 32);
	}
}

static inline void
absorb(uint64_t v[4], uint64_t word)
{
	v[3] ^= word;
	mix(v, 2);
	v[0] ^= word;
}

/* The hash of "len" bytes under a key of IDEM_SIPHASH_KEY bytes */
uint64_t
idem_siphash(const unsigned char *key, const unsigned char *data, size_t len)
{
	uint64_t	k0 = load(key, 8);
	uint64_t	k1 = load(key + 8, 8);
	uint64_t	v[4] = {
		k0 ^ UINT64_C(0x736f6d6570736575),
		k1 ^ UINT64_C(0x646f72616e646f6d),
		k0 ^ UINT64_C(0x6c7967656e657261),
		k1 ^ UINT64_C(0x7465646279746573)
	};
	size_t		words = len / 8;

	for (size_t i = 0; i < words; i++)
		absorb(v, load(data + 8 * i, 8));
	absorb(v, load(data + 8 * words, len % 8) | (uint64_t) len << 56);

	v[2] ^= 0xff;
	mix(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}
