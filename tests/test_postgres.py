"""The PostgreSQL of the tests is a real one: it asks for its password and keeps what was committed through kill -9."""

from __future__ import annotations

import pytest
import sqlalchemy

from postgres import Postgres


def test_it_asks_for_its_password_and_survives_a_kill() -> None:
    server = Postgres()
    try:
        server.start()
        uri = server.database("mine")
        stranger = sqlalchemy.create_engine(uri.replace(server.password, "guess"))
        with pytest.raises(sqlalchemy.exc.OperationalError, match="password"), stranger.connect():
            pass
        engine = sqlalchemy.create_engine(uri, pool_pre_ping=True)
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("CREATE TABLE t (x int)"))
            connection.execute(sqlalchemy.text("INSERT INTO t VALUES (7)"))
        server.kill()
        with pytest.raises(sqlalchemy.exc.OperationalError), engine.connect():
            pass
        server.start()
        with engine.connect() as connection:
            assert connection.execute(sqlalchemy.text("SELECT x FROM t")).scalar() == 7
        engine.dispose()
    finally:
        server.remove()
    assert not server.folder.exists()
