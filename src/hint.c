/*-------------------------------------------------------------------------
 *
 * hint.c
 *	  Where this session last saw a key's row.
 *
 * Who reserves a key usually completes it, and a client that retries does so
 * more than once.  A small table of row locations spares these calls the way
 * down the index, which is the larger part of a look.  A hint proves nothing:
 * the row that is found must be the live version and carry the key; otherwise
 * the index is asked.
 *
 *-------------------------------------------------------------------------
 */
#include "idem_tool.h"

#include "storage/itemptr.h"
#include "utils/memutils.h"

/* A power of two: 64 kB in each session that uses idem_tool */
#define IDEM_HINTS	4096

typedef struct Hint
{
	uint64		hash;
	ItemPointerData tid;
} Hint;

static Hint *hints = NULL;

/* Note that the key's row is at "tid" */
void
idem_hint_note(const IdemKey *key, ItemPointer tid)
{
	Hint	   *hint;

	if (hints == NULL)
		hints = MemoryContextAllocZero(TopMemoryContext,
									   IDEM_HINTS * sizeof(Hint));
	hint = &hints[key->hash % IDEM_HINTS];
	hint->hash = key->hash;
	hint->tid = *tid;
}

/* Where was the key's row?  NULL if we do not know. */
ItemPointer
idem_hint_find(const IdemKey *key)
{
	Hint	   *hint;

	if (hints == NULL)
		return NULL;
	hint = &hints[key->hash % IDEM_HINTS];
	return hint->hash == key->hash && ItemPointerIsValid(&hint->tid) ?
		&hint->tid : NULL;
}

/* The table changed: its rows may be anywhere */
void
idem_hint_forget(void)
{
	if (hints)
		MemSet(hints, 0, IDEM_HINTS * sizeof(Hint));
}
