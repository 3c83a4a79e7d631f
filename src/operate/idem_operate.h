/*-------------------------------------------------------------------------
 *
 * idem_operate.h
 *	  Settle or free a key by hand.
 *
 *	operate.c	an operator's calls
 *	audit.c		the trace that they leave
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_OPERATE_H
#define IDEM_OPERATE_H

#include "idem_tool.h"

/* audit.c */
extern void idem_audit(const char *action, const IdemKey *key,
					   const char *old_status, const char *new_status);
extern int64 idem_audit_trim(int max_rows);
extern void idem_audit_refused(const char *action, const IdemKey *key);

#endif							/* IDEM_OPERATE_H */
