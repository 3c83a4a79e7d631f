/*-------------------------------------------------------------------------
 *
 * siphash.h
 *	  A short hash with a key.
 *
 *-------------------------------------------------------------------------
 */
#ifndef SIPHASH_H
#define SIPHASH_H

#include <stddef.h>
#include <stdint.h>

#define IDEM_SIPHASH_KEY	16

extern uint64_t idem_siphash(const unsigned char *key,
							 const unsigned char *data, size_t len);

#endif							/* SIPHASH_H */
