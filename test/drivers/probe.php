<?php
// PDO

const NAME = 'PDO';
$db = new PDO('pgsql:', null, null, [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
echo '# PHP ', PHP_MAJOR_VERSION, '.', PHP_MINOR_VERSION, "\n";

function row(...$cells)
{
    echo '| ', implode(' | ', $cells), " |\n";
}

function value($db, $query, ...$arguments)
{
    $statement = $db->prepare($query);
    $statement->execute($arguments);
    return $statement->fetch(PDO::FETCH_NUM)[0];
}

/** The value, or what the server or the driver says against it. */
function outcome($db, $query, ...$arguments)
{
    set_error_handler(function ($number, $message) { throw new ErrorException($message); });
    try {
        return value($db, $query, ...$arguments);
    } catch (PDOException $error) {
        return $error->getCode();
    } catch (Throwable $error) {
        return 'the driver refuses';
    } finally {
        restore_error_handler();
    }
}

function seen($db, $key)
{
    return value($db, 'SELECT count(*) FROM idem_lookup(?)', $key) == 0 ? 'not committed' : 'committed';
}

function result($db, $key, $value)
{
    $token = value($db, 'SELECT token FROM idem_reserve(?)', $key);
    $said = outcome($db, 'SELECT idem_complete(?, ?, ?)', $key, $value, $token);
    return $said !== true ? $said
        : value($db, "SELECT coalesce('`' || result::text || '`', 'SQL NULL') FROM idem_lookup(?)", $key);
}

function lease($db, $key, $ttl)
{
    $said = outcome($db, 'SELECT status FROM idem_reserve(?, ?)', $key, $ttl);
    return $said !== 'reserved' ? $said : value($db,
        "SELECT extract(epoch FROM expires_at - reserved_at)::integer || ' s' FROM idem_lookup(?)", $key);
}

value($db, "SELECT idem_reserve('php:plain')");
$alone = outcome($db, "SELECT status FROM idem_reserve('php:two', two_phase => true)");
$plain = seen($db, 'php:plain');
$db->beginTransaction();
$block = outcome($db, "SELECT status FROM idem_reserve('php:block', two_phase => true)");
$db->rollBack();
row('transactions', NAME, $plain, $alone, $block, 'nothing to do');

$cells = [];
foreach ([['a' => 1], [1, 2], 'ok'] as $n => $value) {
    $cells[] = result($db, "php:$n", $value);
}
value($db, "SELECT idem_complete('php:ok', '1', token) FROM idem_reserve('php:ok')");
row('jsonb', NAME, ...[...$cells, result($db, 'php:nul', json_encode("a\0b")),
    gettype(value($db, "SELECT result FROM idem_reserve('php:ok')")), '`json_encode($value)`']);

row('times', NAME, '–', '–', lease($db, 'php:300', 300), lease($db, 'php:text', '5 min'),
    gettype(value($db, "SELECT token FROM idem_reserve('php:token')")),
    outcome($db, "SELECT idem_complete('php:token', NULL, ?)", null));

$rival = new PDO('pgsql:');
$rival->beginTransaction();
value($rival, "SELECT idem_reserve('php:late')");
$db->exec("SET statement_timeout = '200ms'");
$said = outcome($db, "SELECT idem_reserve('php:late', wait => '1 min')");
$rival->rollBack();
row('time-outs', NAME, '`statement_timeout`', $said, seen($db, 'php:late'));
