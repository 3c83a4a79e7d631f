# A caller's settings and what he planted reach into functions of others that
# act for him; and how far the superuser's limits bind him.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest::Attack;
use Test::More;

my $node = start_arena('settings');
my $superuser = as_role('postgres');

$superuser->query('CREATE ROLE shop LOGIN');

# What the documentation says to write beside SECURITY DEFINER
my $clauses = <<'END';
ALTER FUNCTION shop.charge(text) SET idem_tool.scope = '' SET idem_tool.owner = ''
	SET idem_tool.result_ttl = '24h' SET idem_tool.takeover = '12h'
END

# A shop, whose function charges once for a key; it belongs to $owner
sub shop
{
	my ($owner) = @_;
	my $database = new_arena();
	my $session = as_role($database);

	$session->query($_)
	  foreach q{SELECT idem.idem_grant('shop')},
	  'CREATE SCHEMA shop AUTHORIZATION shop', 'GRANT USAGE ON SCHEMA shop TO PUBLIC',
	  'CREATE TABLE shop.charges (key text)', 'ALTER TABLE shop.charges OWNER TO shop',
	  <<'END', "ALTER FUNCTION shop.charge(text) OWNER TO $owner";
CREATE FUNCTION shop.charge(k text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS $$
DECLARE
	r record;
BEGIN
	SELECT * INTO r FROM idem.idem_reserve(k);
	IF r.status = 'reserved' THEN
		INSERT INTO shop.charges VALUES (k);
		PERFORM idem.idem_complete(k, '"treasure"', r.token);
	END IF;
	RETURN r.status;
END $$
END
	return ($database, $session);
}

# What a caller does before his first call and before the second, and what that
# does to a function without the clauses
my @settings = (
	[ 'scope', '', q{SET idem_tool.scope = 'other'}, 'charged twice' ],
	[ 'memory', q{SET idem_tool.result_ttl = '1s'}, 'SELECT pg_sleep(1.1)', 'charged twice' ],
	[ 'takeover', 'SET idem_tool.takeover = -1', '', 'charged once' ],
	[ 'lease', q{SET idem_tool.reservation_ttl = '1us'}, '', 'charged once' ],
	[ 'tokens', 'SET idem_tool.session_tokens = on', '', 'charged once' ],
	[ 'owner', 'SET idem_tool.owner = app', '', 'charged once, read' ]);
foreach my $setting (@settings)
{
	my ($name, $first, $second, $without) = @$setting;

	foreach my $with (1, 0)
	{
		my ($database, $session) = shop('shop');
		my $app = as_role($database, 'app');

		# so that it may act for its callers, as it never should
		$session->query('GRANT app TO shop');
		$session->query($clauses) if $with;
		foreach my $sql ($first, q{SELECT shop.charge('k')}, $second, q{SELECT shop.charge('k')})
		{
			$app->try($sql) if $sql;
		}
		my $result = 'charged ' . ('never', 'once', 'twice')[ $session->query('SELECT count(*) FROM shop.charges') ];
		$app->run("RESET idem_tool.$_") foreach 'scope', 'owner';
		$result .= ', read'
		  if join(' ', map { $app->try($_) } q{SELECT result FROM idem.idem_lookup('k')}, q{SELECT result FROM idem.idem_reserve('k')}) =~ /treasure/;
		is($result, $with ? 'charged once' : $without,
			"$name of a caller's session, " . ($with ? 'with the clauses' : 'without'));
		$session->query('REVOKE app FROM shop');
		leave_arena($database);
	}
}

# The owner is one that the function's own role could be
foreach my $owner ('shop', 'postgres')
{
	my ($database, $session) = shop($owner);
	my $app = as_role($database, 'app');

	$app->query('SET idem_tool.owner = app');
	is($app->try(q{SELECT shop.charge('k')}), '42501',
		"a function of $owner does not reserve for who calls it");
	is($session->query('SELECT count(*) FROM shop.charges'), '0', '... and does nothing');
	leave_arena($database);
}

# What a caller has planted under a key is believed by nobody but his members
foreach my $owner ('shop', 'postgres')
{
	my ($database, $session) = shop($owner);
	my $app = as_role($database, 'app');

	$app->query($_)
	  foreach q{SELECT idem.idem_complete('charge:98', '"forged"', token) FROM idem.idem_reserve('charge:98')},
	  q{SELECT FROM idem.idem_reserve('charge:99', '1 us')};
	foreach my $key ('charge:98', 'charge:99')
	{
		is($app->try("SELECT shop.charge('$key')"), '42501', "a function of $owner does not believe: $key");
		is($session->try("SELECT shop.charge('$key')"), '42501', '... called by a superuser');
		is($session->try("SELECT * FROM idem.idem_reserve('$key')"), '42501', '... nor does he');
	}
	is($session->query('SELECT count(*) FROM shop.charges'), '0', '... and nothing is done');

	# the control
	$session->query("GRANT app TO $owner");
	is($app->try(q{SELECT shop.charge('charge:98')}), 'done', '... but a member would');
	$session->query("REVOKE app FROM $owner");
	leave_arena($database);
}

# The limits
my $database = new_arena();
my $app = as_role($database, 'app');
my $ops = as_role($database, 'ops');
my $answer = $app->run(q{SELECT idem.idem_reserve('k', '100000 years')});
is($answer->{sqlstate}, '22023', 'a lease beyond all limits is refused');
like($answer->{hint}, qr/second/, '... with a word on units');
is($app->query(q{SET idem_tool.reservation_ttl = '20d'; SELECT expires_at <= now() + interval '24:00:01' FROM idem.idem_reserve('k')}),
	't', "... and a setting of the caller's counts as the limit");
is($app->try(q{SELECT idem.idem_extend('k', '2 days', token) FROM idem.idem_reserve('k2', '1 s')}), '22023',
	'... also to extend it');
is($app->try(q{SELECT idem.idem_complete('k2', (SELECT jsonb_agg(md5(i::text)) FROM generate_series(1, 100000) AS i), token) FROM idem.idem_reserve('k3')}),
	'54000', 'a result beyond all limits is refused');
is($ops->try(q{SELECT idem.idem_register('honest', reservation_ttl => '2 days')}), '22023',
	"an operator's registration is bound");
as_role($database)->query("ALTER DATABASE $database SET idem_tool.max_result_ttl = '1 h'");
$app = as_role($database, 'app');
is($app->try(q{SELECT idem.idem_complete('k4', '1', token, '2 h') FROM idem.idem_reserve('k4')}), '22023',
	'a memory beyond the limit is refused');
is($app->query(q{SELECT idem.idem_complete('k5', '1', token) FROM idem.idem_reserve('k5'); SELECT expires_at <= now() + interval '01:00:01' FROM idem.idem_lookup('k5')}),
	"t\nt", "... and a user's setting counts as the limit");
foreach my $setting ('max_reservation_ttl', 'max_result_ttl', 'max_result_size', 'unknown_ttl', 'worker')
{
	is($app->try("SET idem_tool.$setting = '-1'"), '42501', "a caller does not set $setting");
	is($app->try("SELECT set_config('idem_tool.$setting', '-1', true)"), '42501', '... in no way');
	is($app->try("ALTER ROLE app SET idem_tool.$setting = '-1'"), '42501', '... nor for the next time');
	is($app->try("CREATE FUNCTION app.f() RETURNS int LANGUAGE sql SET idem_tool.$setting = '-1' AS 'SELECT 1'"),
		'42501', '... nor for a function of his');
}
done_testing();
