# The extension is trusted: the owner of a database creates it, uses it, grants,
# and drops it, without being a superuser, and becomes no more than he was.  (For
# his dumps see 083, for what he can do to the objects 088.)

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest::Attack;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_arena('trusted',
	conf => "shared_preload_libraries = 'idem_tool'\nidem_tool.naptime = 100ms");
my $database = new_arena('bare');
my $owner = as_role($database, 'dbo');

is($owner->query('SELECT rolsuper OR rolcreaterole OR rolcreatedb FROM pg_roles WHERE rolname = current_user'),
	'f', 'the owner is nothing else');
$owner->query($_)
  foreach 'CREATE SCHEMA idem', 'CREATE EXTENSION idem_tool SCHEMA idem', people();
is($owner->query(q{SELECT extowner::regrole FROM pg_extension WHERE extname = 'idem_tool'}),
	'dbo', 'the extension is his');
is( $owner->query(<<'END'), '', 'and so are all its objects, for as long as he owns the database');
SELECT i.identity
FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'idem_tool'
CROSS JOIN pg_identify_object(d.classid, d.objid, 0) AS i
JOIN (
	SELECT 'pg_class'::regclass AS classid, oid, relowner AS owner FROM pg_class
	UNION ALL SELECT 'pg_proc'::regclass, oid, proowner FROM pg_proc
	UNION ALL SELECT 'pg_type'::regclass, oid, typowner FROM pg_type) AS o
	ON o.classid = d.classid AND o.oid = d.objid
WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
AND o.owner <> 'pg_database_owner'::regrole
END

# He uses it
is($owner->query(q{SELECT status FROM idem.idem_reserve('mine')}), 'reserved', 'he reserves');
$owner->query(q{SELECT idem.idem_register('tool', 'shared.same(jsonb)', 'read', description => 'x')});
is($owner->query(q{SELECT idem.idem_call('tool', '{"b": 1}')}), '{"b": 1}', '... has tools');
is($owner->query(q{SELECT idem.idem_resolve('mine', 'done', '1', force => true)}), 't', '... resolves');
is($owner->query(q{SELECT idem.idem_forget('mine')}), 't', '... forgets');
is($owner->query('SELECT count(*) FROM idem.idem_audit'), '2', '... sees the audit');
is($owner->query('SELECT expired FROM idem.idem_sweep()'), '0', '... sweeps');
is($owner->query('SELECT idem.idem_wake_worker()'), 't', '... wakes the worker');
is(as_role($database, 'app')->query(q{SELECT status FROM idem.idem_reserve('k', '1 us')}),
	'reserved', 'whom he granted it reserves, too');
ok( $node->poll_query_until($database,
		q{SELECT status = 'expired' FROM idem.idempotency_keys WHERE key = 'k'}),
	'the worker serves his database');
is($owner->query(q{SELECT idem.idem_revoke('app')}), '', 'he takes it back');
is(as_role($database, 'app')->try(q{SELECT idem.idem_reserve('k')}), '42501', '... for good');
is($owner->try('SELECT idem.idem_start_worker()'), '42501', 'he starts no process of the server');
my $other = new_arena();
as_role($other, 'victim')->query(q{SELECT FROM idem.idem_reserve('k')});
is($owner->query('SELECT DISTINCT datname FROM idem.idem_stats'), $database,
	'he sees the figures of his database only');
foreach my $setting ('max_reservation_ttl', 'max_result_ttl', 'max_result_size', 'unknown_ttl', 'worker')
{
	is($owner->try("SET idem_tool.$setting = -1"), '42501', "he does not set $setting");
	is($owner->try("ALTER DATABASE $database SET idem_tool.$setting = '0'"), '42501', '... for his database');
	is($owner->try("ALTER FUNCTION idem.idem_sweep() SET idem_tool.$setting = '0'"), '42501', '... for a function');
}
is($owner->try('ALTER EXTENSION idem_tool UPDATE'), '', 'there is nothing to update, which is no error');
is($owner->try(q{ALTER EXTENSION idem_tool UPDATE TO '1.0'}), '', '... nor by name');

# Another owner
as_role($database)->query($_) foreach "ALTER DATABASE $database OWNER TO victim";
is($owner->try('TABLE idem.idempotency_keys'), '42501', 'who sells the database has no part in it');
like(as_role($database, 'victim')->query('SELECT count(*) FROM idem.idempotency_keys'), qr/^\d+$/,
	'... and the new owner has');
as_role($database)->query("ALTER DATABASE $database OWNER TO dbo");

is($owner->try('DROP EXTENSION idem_tool'), '', 'he drops it');
is($owner->query(q{SELECT count(*) FROM pg_class WHERE relnamespace = 'idem'::regnamespace}), '0',
	'... and nothing is left');
is($owner->try('CREATE EXTENSION idem_tool SCHEMA idem'), '', 'and creates it again');

# Who is no owner
my $app = as_role($database, 'app');
is($app->try('DROP EXTENSION idem_tool'), '42501', 'nobody else drops it');
$owner->query('DROP EXTENSION idem_tool');
is($app->try('CREATE EXTENSION idem_tool SCHEMA app'), '42501', '... or creates it');
$_->drop foreach $owner, $app;
leave_arena($database);

# What the owner hangs on the tables: it runs as he, by whomever it is brought
# about in the worker and the operators' functions
my @traps = map { "CREATE TRIGGER trap BEFORE INSERT OR UPDATE OR DELETE ON idem.$_ FOR EACH ROW EXECUTE FUNCTION dbo.trap()" }
  'idempotency_keys', 'idem_audit', 'idem_tools';
my $value = q{CREATE FUNCTION dbo.value(text) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM dbo.note('value'); RETURN 1; END $$};
my @for_the_sweep = (
	[ 'app', q{SELECT FROM idem.idem_reserve('lapsed', '1 us')} ],
	[ 'app', q{SELECT idem.idem_complete('over', '1', token, '1 us') FROM idem.idem_reserve('over')} ]);
my @operations = (
	[ undef, 'SELECT idem.idem_sweep()' ],
	[ undef, q{SELECT idem.idem_resolve('treasure open', 'done', '1', force => true)} ],
	[ undef, q{SELECT idem.idem_resolve('new', 'done', '1', create_missing => true)} ],
	[ undef, q{SELECT idem.idem_forget('treasure kept')} ],
	[ undef, q{SELECT idem.idem_register('tool')} ],
	[ undef, q{SELECT idem.idem_unregister('honest tool')} ],
	[ 'ops', q{SELECT idem.idem_forget('treasure audited')} ]);
my %traps = (
	'triggers' => \@traps,
	'deferred triggers' => [
		map { s/BEFORE INSERT/AFTER INSERT/r =~ s/CREATE TRIGGER/CREATE CONSTRAINT TRIGGER/r =~ s/FOR EACH/DEFERRABLE INITIALLY DEFERRED FOR EACH/r } @traps
	],
	'rules' => [
		map { ("CREATE RULE a AS ON INSERT TO idem.$_ DO ALSO SELECT dbo.note('rule')",
				"CREATE RULE b AS ON UPDATE TO idem.$_ DO ALSO SELECT dbo.note('rule')",
				"CREATE RULE c AS ON DELETE TO idem.$_ DO ALSO SELECT dbo.note('rule')") }
		  'idempotency_keys', 'idem_audit', 'idem_tools'
	],
	'indexes' => [
		$value,
		'CREATE INDEX ON idem.idempotency_keys (dbo.value(status))',
		'CREATE INDEX ON idem.idem_audit (dbo.value(action))',
		'CREATE INDEX ON idem.idem_tools (dbo.value(effect))',
		q{CREATE INDEX ON idem.idempotency_keys (key) WHERE dbo.value('x') = 1}
	],
	'generated columns and checks' => [
		$value,
		'ALTER TABLE idem.idempotency_keys ADD COLUMN more integer GENERATED ALWAYS AS (dbo.value(status)) STORED',
		'ALTER TABLE idem.idempotency_keys ADD CHECK (dbo.value(status) = 1)',
		q{ALTER TABLE idem.idem_audit ADD COLUMN more integer DEFAULT dbo.value('x'), ADD CHECK (dbo.value(action) = 1)},
		q{ALTER TABLE idem.idem_tools ADD COLUMN more integer DEFAULT dbo.value('x'), ADD CHECK (dbo.value(effect) = 1)}
	],
	'policies' => [
		map { ("ALTER TABLE idem.$_ FORCE ROW LEVEL SECURITY",
				"CREATE POLICY trap ON idem.$_ USING (dbo.note('policy')) WITH CHECK (dbo.note('check'))") }
		  'idempotency_keys', 'idem_audit', 'idem_tools'
	],
	'tables of his own' => [
		$value,
		map { ("ALTER EXTENSION idem_tool DROP TABLE idem.$_",
				"ALTER TABLE idem.$_ OWNER TO dbo",
				"CREATE TRIGGER trap BEFORE INSERT OR UPDATE OR DELETE ON idem.$_ FOR EACH ROW EXECUTE FUNCTION dbo.trap()",
				"ALTER TABLE idem.$_ ADD CHECK (dbo.value('x') = 1)") }
		  'idempotency_keys', 'idem_audit', 'idem_tools'
	],
	'tables that are views' => [
		map { ("ALTER TABLE idem.$_ RENAME TO ${_}_away",
				"CREATE VIEW idem.$_ AS SELECT * FROM idem.${_}_away WHERE dbo.note('view')",
				"CREATE TRIGGER trap INSTEAD OF INSERT OR UPDATE OR DELETE ON idem.$_ FOR EACH ROW EXECUTE FUNCTION dbo.trap()") }
		  'idem_audit', 'idem_tools'
	]);
foreach my $what (sort keys %traps)
{
	my $arena = new_arena('bare');
	as_role($arena, 'dbo')->query($_)
	  foreach 'CREATE SCHEMA idem', 'CREATE EXTENSION idem_tool SCHEMA idem', people();
	as_role($arena)->query($_) foreach treasure();
	$_->[1] = as_role($arena, $_->[0])->query($_->[1]) foreach map { [@$_] } @for_the_sweep;

	is( join("\n",
			gains_of($arena, 0, by => 'dbo', does => $traps{$what}, others => \@operations)),
		'',
		"the owner's $what: gains nothing");
	$node->command_ok([ 'pg_dump', '-f', PostgreSQL::Test::Utils::tempdir() . '/dump', $arena ],
		'... when a superuser dumps it');
	leave_arena($arena);
}

# The control, for all of them: objects that belong to a superuser, as do those
# that no extension gives away
attack(
	"the owner's trigger on what is a superuser's",
	by => 'dbo',
	does => [ 'CREATE TABLE dbo.more (k text)', @traps ],
	others => \@operations,
	weakened => ['ALTER TABLE idem.idempotency_keys OWNER TO postgres',
		'ALTER TABLE idem.idem_audit OWNER TO postgres'],
	gains => qr/role dbo: f.* became t/);

# A role that may create in the database, but does not own it, can have the
# extension in a schema of his own.  What is in there is not his: no control.
attack(
	'created by a role that does not own the database',
	template => 'bare',
	given => [
		q{DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO app', current_database()); END $$}
	],
	does => [
		'CREATE SCHEMA idem',
		'CREATE EXTENSION idem_tool SCHEMA idem'
	],
	others => [
		[
			'dbo',
			q{SELECT idem.idem_complete('treasure kept', '"treasure"', token) FROM idem.idem_reserve('treasure kept')}
		]
	],
	gathers => [
		'TABLE idem.idempotency_keys',
		q{SELECT idem.idem_grant('app', 'operator')},
		q{SELECT * FROM idem.idem_lookup('treasure kept')},
		(
			map { ("ALTER TABLE idem.$_ OWNER TO app", "ALTER EXTENSION idem_tool DROP TABLE idem.$_",
					"DROP TABLE idem.$_", "GRANT ALL ON idem.$_ TO app",
					"CREATE TRIGGER trap BEFORE UPDATE ON idem.$_ FOR EACH ROW EXECUTE FUNCTION app.trap()",
					"CREATE RULE trap AS ON UPDATE TO idem.$_ DO ALSO SELECT app.note('rule')") }
			  'idempotency_keys', 'idem_audit', 'idem_tools'
		),
		'TABLE idem.idempotency_keys'
	]);
done_testing();
