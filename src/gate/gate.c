/*-------------------------------------------------------------------------
 *
 * gate.c
 *	  The gate between reads and writes: which calls of tools need a key.
 *
 * A read may run as often as anybody likes, and so may a write that its own
 * target recognizes as a repetition; both pass without a key and without a
 * row.  Every other write needs a key that the caller chose, or, if the tool
 * allows it, gets one made from its arguments, which is weaker: two genuine
 * calls that look alike become one.
 *
 *-------------------------------------------------------------------------
 */
#include "gate/idem_gate.h"

#include "keys/idem_keys.h"

/* Argument numbers of idem_call */
#define ARG_TOOL	0
#define ARG_ARGS	1
#define ARG_KEY		2
#define ARG_WAIT	3
#define ARG_SCOPE	4

PG_FUNCTION_INFO_V1(idem_call);

/* The argument that holds the tool's arguments */
Jsonb *
idem_tool_args_from_args(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("args must not be null")));
	return PG_GETARG_JSONB_P(argno);
}

/* How long the outcome is kept: a derived key has a time of its own */
static void
set_result_ttl(IdemGate *gate)
{
	gate->result_ttl = gate->derived_key ? gate->tool.fallback_ttl :
		gate->tool.result_ttl;
}

/* What to reserve for a call of the tool, which is a write */
void
idem_gate_request(IdemReserveRequest *request, IdemGate *gate,
				  FunctionCallInfo fcinfo, int keyarg, int scopearg)
{
	const IdemTool *tool = &gate->tool;

	gate->derived_key = PG_ARGISNULL(keyarg);
	if (!gate->derived_key)
		idem_key_from_args(&request->key, fcinfo, keyarg, scopearg);
	else if (tool->fallback_ttl != NULL)
		idem_key_set(&request->key,
					 idem_make_call_key(tool->name, gate->args, NULL),
					 fcinfo, scopearg);
	else
		idem_refuse_unkeyed(tool);
	set_result_ttl(gate);

	request->ttl = tool->reservation_ttl;
	request->takeover = tool->takeover;
	request->fingerprint = idem_call_fingerprint(tool->name, gate->args);
}

/*
 * Reserve the key of a call.  Who waited for it does not act on what was
 * registered before.
 */
void
idem_gate_reserve(const IdemReserveRequest *request, IdemGate *gate,
				  IdemReserveOutcome *outcome)
{
	idem_reserve_key(request, outcome);
	idem_tool_again(&gate->tool);
	set_result_ttl(gate);
}

/* Run a write once for its key */
static NullableDatum
call_write(IdemGate *gate, FunctionCallInfo fcinfo)
{
	IdemReserveRequest request = {.name = "idem_call()"};
	IdemReserveOutcome outcome;

	idem_gate_request(&request, gate, fcinfo, ARG_KEY, ARG_SCOPE);
	request.wait_usecs = idem_wait_from_args(fcinfo, ARG_WAIT);

	/* refuse what cannot run before anybody waits for it */
	idem_check_ttl("ttl", IDEM_MEMORY, gate->result_ttl);
	(void) idem_tool_function(&gate->tool);

	idem_gate_reserve(&request, gate, &outcome);
	return idem_run_once(&request.key, &outcome,
						 idem_tool_function(&gate->tool), gate->args,
						 gate->result_ttl);
}

/*
 * idem_call(tool, args, key, wait, scope) → jsonb
 *
 * Runs a registered tool: a write once for its key, others at once.  Errors:
 * those of idem_run; IK008 for a write without a key; 42704 for a tool that is
 * not registered.
 */
Datum
idem_call(PG_FUNCTION_ARGS)
{
	IdemGate	gate;
	NullableDatum result;

	idem_tool_from_args(&gate.tool, fcinfo, ARG_TOOL);
	gate.args = idem_tool_args_from_args(fcinfo, ARG_ARGS);

	if (gate.tool.effect == IDEM_WRITE)
		result = call_write(&gate, fcinfo);
	else
		result = idem_call_function(idem_tool_function(&gate.tool), gate.args);
	if (result.isnull)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(result.value);
}
