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
#include "idem_worker.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/itemptr.h"
#include "utils/memutils.h"

/* A power of two: 64 kB in each session that uses idem_tool */
#define IDEM_OWN_HINTS	4096

static IdemHint *own_hints = NULL;

static IdemHint *
make_own_hints(void)
{
	IdemHint   *hints = MemoryContextAlloc(TopMemoryContext,
										   IDEM_OWN_HINTS * sizeof(IdemHint));

	idem_hints_init(hints, IDEM_OWN_HINTS);
	return hints;
}

/* Set up a table of hints that says nothing */
void
idem_hints_init(IdemHint *hints, int n)
{
	for (int i = 0; i < n; i++)
	{
		pg_atomic_init_u64(&hints[i].hash, 0);
		pg_atomic_init_u64(&hints[i].tid, 0);
	}
}

/* The hash of a key of this database */
static uint64
hint_hash(const IdemKey *key)
{
	return hash_combine64(key->hash, MyDatabaseId);
}

static IdemHint *
hint_for(uint64 hash)
{
	if (idem_shared)
		return &idem_shared->hints[hash % IDEM_SHARED_HINTS];
	if (own_hints == NULL)
		own_hints = make_own_hints();
	return &own_hints[hash % IDEM_OWN_HINTS];
}

/* Note that the key's row is at "tid" */
void
idem_hint_note(const IdemKey *key, ItemPointer tid)
{
	uint64		hash = hint_hash(key);
	IdemHint   *hint = hint_for(hash);

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
	IdemHint   *hint = hint_for(hash);
	uint64		place;

	if (pg_atomic_read_u64(&hint->hash) != hash)
		return false;
	place = pg_atomic_read_u64(&hint->tid);
	ItemPointerSet(tid, (BlockNumber) (place >> 16),
				   (OffsetNumber) (place & 0xFFFF));
	return ItemPointerIsValid(tid);
}
