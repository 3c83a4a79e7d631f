/*-------------------------------------------------------------------------
 *
 * idem_tool.c
 *	  The module: its settings, and what is set up when it is loaded.
 *
 *-------------------------------------------------------------------------
 */
#include "call/idem_call.h"
#include "gate/idem_gate.h"
#include "keys/idem_keys.h"
#include "shared/idem_shared.h"
#include "store/idem_store.h"

#include <limits.h>

#include "worker/idem_worker.h"
#include "miscadmin.h"
#include "utils/guc.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

/* Settings; the comments users read are in DefineCustom...Variable() */
int			idem_reservation_ttl;
int			idem_result_ttl;
int			idem_takeover;
int			idem_unknown_ttl;
int			idem_audit_ttl;
int			idem_max_reservation_ttl;
int			idem_max_result_ttl;
int			idem_max_result_size;
char	   *idem_scope;
char	   *idem_owner;
bool		idem_durable;
bool		idem_session_tokens;
bool		idem_two_phase;
bool		idem_enable_callscan = true;
bool		idem_worker;
int			idem_naptime;
int			idem_sweep_pages;

/* The scope must be one that an argument could be */
static bool
check_scope(char **newval, void **extra, GucSource source)
{
	const char *error = idem_name_error(*newval, strlen(*newval),
										IDEM_MAX_SCOPE, true);

	if (error)
		GUC_check_errdetail("A scope %s.", error);
	return error == NULL;
}

/* A memory that ends at once would be none */
static bool
check_memory(int *newval, void **extra, GucSource source)
{
	if (*newval == 0)
	{
		GUC_check_errdetail("The time is counted in whole seconds: it must be at least 1 s, or -1 for ever.");
		return false;
	}
	return true;
}

/* Times, in seconds */
static void
define_times(void)
{
	DefineCustomIntVariable("idem_tool.reservation_ttl",
							"Length of a reservation's lease when idem_reserve or idem_extend is given none.",
							NULL,
							&idem_reservation_ttl, 15 * SECS_PER_MINUTE,
							1, INT_MAX, PGC_USERSET, GUC_UNIT_S,
							NULL, NULL, NULL);
	DefineCustomIntVariable("idem_tool.result_ttl",
							"How long an outcome is remembered when none is given, and a released key.",
							"-1 remembers for ever.",
							&idem_result_ttl, SECS_PER_DAY,
							-1, INT_MAX, PGC_USERSET, GUC_UNIT_S,
							check_memory, NULL, NULL);
	DefineCustomIntVariable("idem_tool.takeover",
							"How long after its first reservation a key of unknown outcome may be taken over.",
							"-1 means always, 0 never.",
							&idem_takeover, SECS_PER_DAY / 2,
							-1, INT_MAX, PGC_USERSET, GUC_UNIT_S,
							NULL, NULL, NULL);
	DefineCustomIntVariable("idem_tool.unknown_ttl",
							"How long a key of unknown outcome is remembered after its lease has ended.",
							"-1 remembers for ever.",
							&idem_unknown_ttl, 30 * SECS_PER_DAY,
							-1, INT_MAX, PGC_SUSET, GUC_UNIT_S,
							check_memory, NULL, NULL);
	DefineCustomIntVariable("idem_tool.audit_ttl",
							"How long operators' actions are kept in idem_audit.",
							"-1 keeps them for ever.",
							&idem_audit_ttl, 90 * SECS_PER_DAY,
							-1, INT_MAX, PGC_SUSET, GUC_UNIT_S,
							check_memory, NULL, NULL);
}

/* The superuser's limits */
static void
define_limits(void)
{
	DefineCustomIntVariable("idem_tool.max_reservation_ttl",
							"Longest lease that anybody may ask for.",
							"-1 means that there is no limit.",
							&idem_max_reservation_ttl, SECS_PER_DAY,
							-1, INT_MAX, PGC_SUSET, GUC_UNIT_S,
							check_memory, NULL, NULL);
	DefineCustomIntVariable("idem_tool.max_result_ttl",
							"Longest time for which anybody may have an outcome remembered.",
							"-1 means that there is no limit.",
							&idem_max_result_ttl, -1,
							-1, INT_MAX, PGC_SUSET, GUC_UNIT_S,
							check_memory, NULL, NULL);
	DefineCustomIntVariable("idem_tool.max_result_size",
							"Largest result or error that is recorded, as uncompressed jsonb.",
							NULL,
							&idem_max_result_size, 1024 * 1024,
							0, INT_MAX, PGC_SUSET, GUC_UNIT_BYTE,
							NULL, NULL, NULL);
}

/* The sweep's settings */
static void
define_worker(void)
{
	DefineCustomBoolVariable("idem_tool.worker",
							 "Sweeps this database: marks lapsed leases and deletes what is past its memory.",
							 "Can be set per database with ALTER DATABASE.",
							 &idem_worker, true,
							 PGC_SUSET, 0,
							 NULL, NULL, NULL);
	DefineCustomIntVariable("idem_tool.naptime",
							"Time between two rounds of the sweep in a database.",
							NULL,
							&idem_naptime, 5000,
							10, SECS_PER_DAY * 1000, PGC_SIGHUP, GUC_UNIT_MS,
							NULL, NULL, NULL);
	DefineCustomIntVariable("idem_tool.sweep_pages",
							"Pages of the table that a round of the sweep visits at most.",
							NULL,
							&idem_sweep_pages, 16384,
							1, INT_MAX, PGC_SIGHUP, 0,
							NULL, NULL, NULL);
}

/*
 * Called when the library is loaded, by a session's first call or in advance.
 */
void
_PG_init(void)
{
	define_times();
	define_limits();
	DefineCustomStringVariable("idem_tool.scope",
							   "Key space of calls that name none.",
							   "Behind a pooler pass the argument instead, or use SET LOCAL.",
							   &idem_scope, "",
							   PGC_USERSET, GUC_REPORT,
							   check_scope, NULL, NULL);
	DefineCustomStringVariable("idem_tool.owner",
							   "Role that owns the keys which this user reserves first.",
							   "The user must be a member of it. Empty means the current user.",
							   &idem_owner, "",
							   PGC_USERSET, 0,
							   NULL, NULL, NULL);
	DefineCustomBoolVariable("idem_tool.durable",
							 "Flushes commits that leave reservations open, or settle earlier ones, even if synchronous_commit is off.",
							 NULL,
							 &idem_durable, true,
							 PGC_USERSET, 0,
							 NULL, NULL, NULL);
	DefineCustomBoolVariable("idem_tool.session_tokens",
							 "Lets calls without a token act for what this session reserved.",
							 "For interactive use; unsafe behind a pooler.",
							 &idem_session_tokens, false,
							 PGC_USERSET, 0,
							 NULL, NULL, NULL);
	DefineCustomBoolVariable("idem_tool.two_phase",
							 "Lets idem_reserve refuse to reserve inside a transaction block.",
							 "For effects outside the database, before which the reservation must be committed.",
							 &idem_two_phase, false,
							 PGC_USERSET, 0,
							 NULL, NULL, NULL);
	DefineCustomBoolVariable("idem_tool.enable_callscan",
							 "Enables the planner's use of idem_tool's own scan for calls in FROM.",
							 "For debugging.",
							 &idem_enable_callscan, true,
							 PGC_USERSET, GUC_EXPLAIN,
							 NULL, NULL, NULL);
	define_worker();
	MarkGUCPrefixReserved("idem_tool");

	idem_store_init();
	idem_writer_init();
	idem_row_init();
	idem_durable_init();
	idem_owner_init();
	idem_tools_init();
	idem_callscan_add(&idem_reserve_scan);
	idem_callscan_add(&idem_lookup_scan);
	idem_callscan_add(&idem_begin_scan);
	idem_callplan_init();

	/* pg_upgrade wants nobody to connect */
	if (process_shared_preload_libraries_in_progress && !IsBinaryUpgrade)
	{
		idem_shmem_init();
		idem_launcher_init();
	}
}
