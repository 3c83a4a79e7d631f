/*-------------------------------------------------------------------------
 *
 * keylock.c
 *	  The short lock on a key that is not there yet.
 *
 * Between a look that finds nothing and the insertion another caller may do
 * the same.  The unique index would tell them apart, but only after the loser
 * has taken a token and left a dead row behind.  So whoever wants to insert
 * holds this lock while he looks a second time and writes, for the call only.
 * Callers of idem_reserve never wait for it; an operator does.
 *
 * Looking twice is for the case that another caller got in between, which is
 * rare: a mark tells whether it can be so.
 *
 * The keys are hashed to 64 bits.  Two keys with one hash would merely see
 * each other as busy for the duration of a call.
 *
 *-------------------------------------------------------------------------
 */
#include "store/idem_store.h"

#include "access/xlog.h"
#include "catalog/pg_control.h"
#include "miscadmin.h"
#include "storage/lock.h"

#include "keys/siphash.h"
#include "shared/idem_shared.h"

/*
 * Hash of scope and key; the two values of "which" give independent hashes.
 * The hash shows in pg_locks, so it is keyed with the cluster's secret: nobody
 * can make a key that gets in the way of another, or find out whose lock it is.
 */
uint64
idem_key_hash(const IdemKey *key, int which)
{
	unsigned char *secret = (unsigned char *) GetMockAuthenticationNonce();
	unsigned char name[sizeof(uint32) + IDEM_MAX_SCOPE + IDEM_MAX_KEY];
	uint32		scopelen = VARSIZE_ANY_EXHDR(key->scope);
	uint32		keylen = VARSIZE_ANY_EXHDR(key->key);

	StaticAssertStmt(2 * IDEM_SIPHASH_KEY <= MOCK_AUTH_NONCE_LEN,
					 "the cluster's secret is too short");
	Assert(scopelen <= IDEM_MAX_SCOPE && keylen <= IDEM_MAX_KEY);
	memcpy(name, &scopelen, sizeof(uint32));
	memcpy(name + sizeof(uint32), VARDATA_ANY(key->scope), scopelen);
	memcpy(name + sizeof(uint32) + scopelen, VARDATA_ANY(key->key), keylen);
	return idem_siphash(secret + which * IDEM_SIPHASH_KEY, name,
						sizeof(uint32) + scopelen + keylen);
}

/* The lock tag of a key in one of our classes of advisory locks */
void
idem_key_locktag(LOCKTAG *tag, const IdemKey *key, uint16 lockclass)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (key->hash >> 32),
						 (uint32) key->hash, lockclass);
}

/* Take the key's lock, which everybody holds only briefly */
void
idem_key_lock(const IdemKey *key)
{
	LOCKTAG		tag;

	idem_key_locktag(&tag, key, IDEM_LOCK_INSERTING);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

/* Take the key's lock if nobody has it */
bool
idem_key_trylock(const IdemKey *key)
{
	LOCKTAG		tag;

	idem_key_locktag(&tag, key, IDEM_LOCK_INSERTING);
	return LockAcquire(&tag, ExclusiveLock, false, true) !=
		LOCKACQUIRE_NOT_AVAIL;
}

/* Let go of it; whoever looked at the key before that must look again */
void
idem_key_unlock(const IdemKey *key)
{
	LOCKTAG		tag;

	if (idem_shared)
		pg_atomic_fetch_add_u64(&idem_shared->marks[key->hash % IDEM_MARKS], 1);
	idem_key_locktag(&tag, key, IDEM_LOCK_INSERTING);
	LockRelease(&tag, ExclusiveLock, false);
}

/*
 * A mark to be compared, under the key's lock, with one from before the look:
 * if they are the same, nobody had the lock in between.  Without shared memory
 * it is the place where WAL is, which stands still only while nobody at all
 * writes.
 */
uint64
idem_key_mark(const IdemKey *key)
{
	uint64		mark = idem_shared == NULL ? GetXLogInsertRecPtr() :
		pg_atomic_read_u64(&idem_shared->marks[key->hash % IDEM_MARKS]);

	pg_read_barrier();			/* the look comes after this */
	return mark;
}
