/*
 * vectors.c
 *	  Print idem_siphash() of the inputs that its authors have published hashes
 *	  of: the bytes 0, 1, 2, ... of each length from 0 to 63, under the key of
 *	  bytes 0 to 15.  One line each, in the order in which they print the bytes.
 */
#include <stdio.h>

#include "keys/siphash.h"

int
main(void)
{
	unsigned char key[IDEM_SIPHASH_KEY];
	unsigned char data[64];

	for (int i = 0; i < IDEM_SIPHASH_KEY; i++)
		key[i] = (unsigned char) i;
	for (int len = 0; len < 64; len++)
	{
		uint64_t	hash = idem_siphash(key, data, (size_t) len);

		for (int i = 0; i < 8; i++)
			printf("%02x", (unsigned int) (hash >> (8 * i)) & 0xff);
		printf("\n");
		data[len] = (unsigned char) len;
	}
	return 0;
}
