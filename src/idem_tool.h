/*-------------------------------------------------------------------------
 *
 * idem_tool.h
 *	  Atomic idempotency keys inside the database: shared declarations.
 *
 * The rooms of the source, from top to bottom; each has a header with what
 * others may use, which says what its files are for, and uses only rooms that
 * come after it:
 *
 *	worker/		the launcher, its workers, the sweep
 *	gate/		tools: run once, and the gate between reads and writes
 *	operate/	what operators do by hand, and the trace of it
 *	call/		a caller's request, judged: reserve, settle, look up
 *	store/		the table, and one row of it: found, waited for, written
 *	keys/		names, fingerprints, derived keys: computed, not stored
 *	shared/		shared memory and counters
 *
 * idem_tool.c, which the server loads, knows them all.  docs/architecture.md
 * follows a call on its way.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_TOOL_H
#define IDEM_TOOL_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "fmgr.h"
#include "portability/instr_time.h"
#include "utils/timestamp.h"

#include "idem_compat.h"

#define IDEM_EXTENSION_NAME "idem_tool"
#define IDEM_VERSION		"1.0"	/* of the SQL objects that this is for */
#define IDEM_TABLE_NAME		"idempotency_keys"

/* Limits of the contract, in bytes of the server encoding */
#define IDEM_MAX_SCOPE		255
#define IDEM_MAX_KEY		1024
#define IDEM_MAX_HOLDER		255

/*
 * Microseconds since some moment in the past, by a clock that nobody sets: how
 * long something takes does not depend on what an administrator or a time
 * server does to the system's.  All processes of a server have the same one.
 */
static inline int64
idem_clock(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/*
 * Classes of advisory lock that are ours alone; SQL's have 1 and 2, and
 * other extensions are known to use numbers up to 16.
 */
#define IDEM_LOCK_INSERTING	73
#define IDEM_LOCK_POLLING	74
#define IDEM_LOCK_LAUNCHER	75
#define IDEM_LOCK_SWEEP		76
#define IDEM_LOCK_WAITING	77

#define ERRCODE_IDEM_MISMATCH		MAKE_SQLSTATE('I', 'K', '0', '0', '1')
#define ERRCODE_IDEM_LOST			MAKE_SQLSTATE('I', 'K', '0', '0', '2')
#define ERRCODE_IDEM_NO_RESERVATION	MAKE_SQLSTATE('I', 'K', '0', '0', '3')
#define ERRCODE_IDEM_SETTLED		MAKE_SQLSTATE('I', 'K', '0', '0', '4')
#define ERRCODE_IDEM_IN_PROGRESS	MAKE_SQLSTATE('I', 'K', '0', '0', '5')
#define ERRCODE_IDEM_UNKNOWN		MAKE_SQLSTATE('I', 'K', '0', '0', '6')
#define ERRCODE_IDEM_FAILED			MAKE_SQLSTATE('I', 'K', '0', '0', '7')
#define ERRCODE_IDEM_UNKEYED		MAKE_SQLSTATE('I', 'K', '0', '0', '8')

/* A key within its scope, as validated by idem_key_from_args() */
typedef struct IdemKey
{
	text	   *scope;
	text	   *key;
	uint64		hash;			/* of both */
} IdemKey;

/* idem_tool.c: settings; times in seconds, -1 for "for ever" or "always" */
extern int	idem_reservation_ttl;
extern int	idem_result_ttl;
extern int	idem_takeover;
extern int	idem_unknown_ttl;
extern int	idem_audit_ttl;
extern int	idem_max_reservation_ttl;
extern int	idem_max_result_ttl;
extern int	idem_max_result_size;
extern char *idem_scope;
extern char *idem_owner;
extern bool idem_durable;
extern bool idem_session_tokens;
extern bool idem_two_phase;
extern bool idem_enable_callscan;

#endif							/* IDEM_TOOL_H */
