/*-------------------------------------------------------------------------
 *
 * hint.c
 *	  Where a key's row was seen last.
 *
 * Who reserves a key usually completes it, and a client that retries does so
 * soon.  A table of row locations spares these calls the way down the index,
 * which is the larger part of a look.  All sessions share it if the library is
 * preloaded, since a pooler gives the retry to another one; otherwise each has
 * a small one of its own.
 *
 * A hint proves nothing: the row that is found must be the live version and
 * carry the key; otherwise the index is asked.  So it does no harm that hash
 * and location are not written at once, nor that the table may have been
 * rewritten since.
 *
 *-------------------------------------------------------------------------
 */
#include "store/idem_store.h"

#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/itemptr.h"
#include "utils/memutils.h"

#include "shared/idem_shared.h"

/* A power of two: 64 kB in each session that uses idem_tool */
#define IDEM_OWN_HINTS	4096

/*
 * Places that a hint may be in, lest keys push each other out.  A power of two
 * as well: a cache line.
 */
#define IDEM_HINT_WAYS	4

static IdemHint *own_hints = NULL;

static IdemHint *
make_own_hints(void)
{
	IdemHint   *hints = MemoryContextAlloc(TopMemoryContext,
										   IDEM_OWN_HINTS * sizeof(IdemHint));

	idem_hints_init(hints, IDEM_OWN_HINTS);
	return hints;
}

/* The hash of a key of this database */
static uint64
hint_hash(const IdemKey *key)
{
	return hash_combine64(key->hash, MyDatabaseId);
}

/* The places that a hint with this hash may be in */
static IdemHint *
hint_set(uint64 hash)
{
	IdemHint   *hints;
	int			n;

	if (idem_shared == NULL && own_hints == NULL)
		own_hints = make_own_hints();
	hints = idem_shared ? idem_shared->hints : own_hints;
	n = idem_shared ? IDEM_SHARED_HINTS : IDEM_OWN_HINTS;
	return &hints[hash & (n - IDEM_HINT_WAYS)];
}

/* The hint with this hash, NULL if there is none */
static IdemHint *
find_in_set(IdemHint *set, uint64 hash)
{
	for (int i = 0; i < IDEM_HINT_WAYS; i++)
	{
		if (pg_atomic_read_u64(&set[i].hash) == hash)
			return &set[i];
	}
	return NULL;
}

/* Note that the key's row is at "tid" */
void
idem_hint_note(const IdemKey *key, ItemPointer tid)
{
	uint64		hash = hint_hash(key);
	IdemHint   *set = hint_set(hash);
	IdemHint   *hint = find_in_set(set, hash);

	/* in the place of none, or of any other */
	if (hint == NULL)
		hint = find_in_set(set, 0);
	if (hint == NULL)
		hint = &set[pg_prng_uint32(&pg_global_prng_state) % IDEM_HINT_WAYS];
	pg_atomic_write_u64(&hint->hash, hash);
	pg_atomic_write_u64(&hint->tid,
						((uint64) ItemPointerGetBlockNumber(tid) << 16) |
						ItemPointerGetOffsetNumber(tid));
}

/* Where was the key's row?  False if nobody knows. */
bool
idem_hint_find(const IdemKey *key, ItemPointer tid)
{
	uint64		hash = hint_hash(key);
	IdemHint   *hint = find_in_set(hint_set(hash), hash);
	uint64		place;

	if (hint == NULL)
		return false;
	place = pg_atomic_read_u64(&hint->tid);
	ItemPointerSet(tid, (BlockNumber) (place >> 16),
				   (OffsetNumber) (place & 0xFFFF));
	return ItemPointerIsValid(tid);
}
