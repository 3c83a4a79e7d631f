# Privileges that were given by default before the extension came, or wholesale
# afterwards: nobody has any but those that idem_grant gives, and with the
# wholesale ones nobody reads or writes what is another's.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest::Attack;
use Test::More;

my $node = start_arena('privileges');

# All grants on what belongs to the extension
my $grants = <<'END';
SELECT DISTINCT i.identity || ' ' || a.privilege_type || ' ' ||
	CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
	|| ' by ' || a.grantor::regrole || ' ' || a.is_grantable AS line
FROM pg_depend AS d
JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'idem_tool'
CROSS JOIN pg_identify_object(d.classid, d.objid, 0) AS i
CROSS JOIN LATERAL (
	SELECT coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relowner))
	FROM pg_class WHERE d.classid = 'pg_class'::regclass AND oid = d.objid
	UNION ALL
	SELECT attacl FROM pg_attribute WHERE d.classid = 'pg_class'::regclass AND attrelid = d.objid
	UNION ALL
	SELECT coalesce(proacl, acldefault('f', proowner))
	FROM pg_proc WHERE d.classid = 'pg_proc'::regclass AND oid = d.objid
	UNION ALL
	SELECT coalesce(typacl, acldefault('T', typowner))
	FROM pg_type WHERE d.classid = 'pg_type'::regclass AND oid = d.objid) AS o (acl)
CROSS JOIN LATERAL aclexplode(o.acl) AS a
WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
AND a.grantee <> 'pg_database_owner'::regrole
ORDER BY 1
END

my @defaults = map {
	my $what = $_;
	map { "ALTER DEFAULT PRIVILEGES $_ GRANT ALL ON $what TO app, PUBLIC" }
	  '', 'IN SCHEMA idem'
} 'TABLES', 'SEQUENCES', 'FUNCTIONS', 'TYPES';
my @grantable =
  map { "ALTER DEFAULT PRIVILEGES GRANT ALL ON $_ TO app WITH GRANT OPTION" }
  'TABLES', 'SEQUENCES', 'FUNCTIONS';

sub installed
{
	my (@before) = @_;
	my $database = new_arena('bare');
	my $session = as_role($database);

	$session->query('CREATE SCHEMA idem');
	$session->query($_) foreach @before;
	$session->query('CREATE EXTENSION idem_tool SCHEMA idem');
	return ($database, $session);
}

my ($plain, $session) = installed();
my $expected = $session->query($grants);
is($expected =~ s/^\S+ USAGE PUBLIC by .*\n?//mgr =~ s/\n\z//r,
	'idem.idem_may_act(pg_catalog.text) EXECUTE PUBLIC by pg_database_owner false',
	'what PUBLIC may do, but to use types');
leave_arena($plain);

foreach my $before (\@defaults, [ @grantable, @defaults ])
{
	my $name = "default privileges of " . scalar(@$before) . " kinds";
	my $database;

	($database, $session) = installed(@$before);
	is($session->query($grants), $expected, "$name: nothing is left");

	# the control: they did work
	$session->query('CREATE TABLE idem.control ()');
	is($session->query(q{SELECT has_table_privilege('app', 'idem.control', 'TRIGGER')}),
		't', "$name: other objects have them");
	leave_arena($database);
}

# What is given wholesale.  TRUNCATE and setval come with it, and REFERENCES: see
# the handbook.
my %wholesale = (
	'all tables' => ['GRANT ALL ON ALL TABLES IN SCHEMA idem TO app'],
	'pg_write_all_data' => ['GRANT pg_write_all_data TO app'],
	'pg_read_all_data' => ['GRANT pg_read_all_data TO app'],
	'everything but functions' => [
		'GRANT ALL ON ALL TABLES IN SCHEMA idem TO app',
		'GRANT ALL ON ALL SEQUENCES IN SCHEMA idem TO app',
		'GRANT ALL ON SCHEMA idem TO app',
		'GRANT pg_write_all_data, pg_read_all_data TO app'
	]);
my @crimes = (
	q{INSERT INTO idem.idempotency_keys (scope, key, owner, created_at, reserved_at, token, attempt, maybe_ran, expires_at, status) VALUES ('', 'treasure new', 'victim', now(), now(), 1, 1, false, now(), 'done')},
	q{UPDATE idem.idempotency_keys SET result = '"forged"'},
	q{UPDATE idem.idempotency_keys SET owner = 'app'},
	'DELETE FROM idem.idempotency_keys',
	q{MERGE INTO idem.idempotency_keys AS k USING (VALUES (1)) AS v ON true WHEN MATCHED THEN DELETE},
	'SELECT * FROM idem.idempotency_keys FOR UPDATE',
	'TABLE idem.idempotency_keys',
	'TABLE idem.idem_stuck',
	'TABLE idem.idem_audit',
	'TABLE idem.idem_tools',
	q{INSERT INTO idem.idem_audit VALUES (now(), 'ops', 'ops', 'resolve', '', 'treasure', 'absent', 'done')},
	q{UPDATE idem.idem_audit SET role = 'victim'},
	'DELETE FROM idem.idem_audit',
	q{INSERT INTO idem.idem_tools (tool, function, effect) VALUES ('treasure new', 'app.note(jsonb)', 'read')},
	q{INSERT INTO idem.idem_tools (tool, effect) VALUES ('treasure', 'read') ON CONFLICT (tool) DO UPDATE SET effect = 'read'},
	q{UPDATE idem.idem_tools SET function = 'app.note(jsonb)'},
	'DELETE FROM idem.idem_tools',
	'SET row_security = off',
	'TABLE idem.idempotency_keys',
	'RESET row_security',
	'SET session_replication_role = replica',
	'ALTER TABLE idem.idempotency_keys DISABLE ROW LEVEL SECURITY',
	'DROP POLICY idempotency_keys_owner ON idem.idempotency_keys',
	'CREATE POLICY mine ON idem.idempotency_keys USING (true)',
	q{CREATE RULE mine AS ON UPDATE TO idem.idempotency_keys DO ALSO SELECT app.note('rule')},
	'CREATE VIEW app.spy AS TABLE idem.idempotency_keys',
	'TABLE app.spy',
	'CREATE TABLE app.heir () INHERITS (idem.idempotency_keys)',
	q{CREATE INDEX ON idem.idempotency_keys ((app.note(key)))},
	'ALTER TABLE idem.idempotency_keys OWNER TO app',
	'ALTER EXTENSION idem_tool DROP TABLE idem.idempotency_keys',
	'DROP EXTENSION idem_tool',
	q{SELECT most_common_vals FROM pg_stats WHERE tablename LIKE 'idem%'},
	q{SELECT idem.idem_set_privileges('app', 'operator', true)},
	q{SELECT idem.idem_grant('app', 'operator')},
	q{SELECT idem.idem_resolve('treasure open', 'done', '"forged"')},
	q{SELECT idem.idem_forget('treasure kept')},
	'SELECT * FROM idem.idem_stats_read()',
	q{SELECT * FROM idem.idem_lookup('treasure kept')},
	q{SELECT * FROM idem.idem_reserve('treasure kept')},
	q{SELECT idem.idem_complete('treasure open', '"forged"', 2)},
	'GRANT SELECT ON idem.idempotency_keys TO nobody');
foreach my $what (sort keys %wholesale)
{
	attack(
		"with $what",
		given => [ @{ $wholesale{$what} }, 'ANALYZE' ],
		does => \@crimes,
		weak => [
			map { "ALTER TABLE idem.$_ DISABLE ROW LEVEL SECURITY" }
			  'idempotency_keys', 'idem_audit', 'idem_tools'
		],
		gains => qr/app saw what is not his|became/);
}

# Whoever may execute all functions is an operator.  More than that he is not.
attack(
	'with all functions',
	given => ['GRANT ALL ON ALL FUNCTIONS IN SCHEMA idem TO app'],
	does => [
		'SELECT idem.idem_start_worker()',
		map { ("SELECT idem.idem_grant('$_', 'operator')", "SELECT idem.idem_set_privileges('$_', 'caller', true)") } 'app', 'nobody'
	],
	weak => ['ALTER FUNCTION idem.idem_set_privileges(regrole, text, boolean) SECURITY DEFINER'],
	gains => qr/relation .* became .*app=r/);
done_testing();
